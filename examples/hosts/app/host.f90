! An ensemble of Lorenz 96 models, in parts on the ranks of MPI, whose unresolved scale is a network that is called once a step for all columns.
! mpiexec -n 2 ./host FOLDER MEMBERS STEPS
program host
  use, intrinsic :: iso_c_binding, only: c_float
  use, intrinsic :: iso_fortran_env, only: int64, real64
  use mpi_f08
  use lorenz96
  use network
  implicit none
  real(real64), parameter :: dt = 0.005_real64
  character(:), allocatable :: folder
  real(real64), allocatable :: x(:, :), all_x(:, :)
  real(c_float), allocatable :: columns(:, :, :), u(:, :)
  real(real64) :: seconds(2), slowest(2)
  integer(int64) :: ticks(4), rate
  integer :: ranks, rank, members, steps, own, step, i, unit
  real(real64) :: memory(2), largest(2)

  call MPI_Init()
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call read_arguments(folder, members, steps)
  if (modulo(members, ranks) /= 0) error stop "the number of ranks must divide that of the members"
  own = members/ranks
  call load_network(folder)
  allocate (x(n_large, own), u(n_large, own), columns(n_stencil, n_large, own))
  do i = 1, own
    x(:, i) = initial(rank*own + i)
  end do

  call stencils(x, columns)
  do i = 1, 3  ! libtorch specialises a module in its first calls
    call apply_network(n_large*own, columns, u)
  end do
  call MPI_Barrier(MPI_COMM_WORLD)
  seconds = 0
  do step = 1, steps
    call system_clock(ticks(1), rate)
    call stencils(x, columns)
    call system_clock(ticks(2))
    call apply_network(n_large*own, columns, u)
    call system_clock(ticks(3))
    call step_closed(x, u, dt)
    call system_clock(ticks(4))
    seconds = seconds + real([ticks(4) - ticks(1), ticks(3) - ticks(2)], real64)/rate
  end do

  memory = megabytes()
  call MPI_Reduce(seconds, slowest, 2, MPI_DOUBLE_PRECISION, MPI_MAX, 0, MPI_COMM_WORLD)
  call MPI_Reduce(memory, largest, 2, MPI_DOUBLE_PRECISION, MPI_MAX, 0, MPI_COMM_WORLD)
  allocate (all_x(n_large, merge(members, 0, rank == 0)))
  call MPI_Gather(x, size(x), MPI_DOUBLE_PRECISION, all_x, size(x), MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD)
  if (rank == 0) then
    open (newunit=unit, file=folder//"/state.bin", access="stream", form="unformatted", status="replace")
    write (unit) all_x
    close (unit)
    print "(a, f0.3, a, f0.3, a, f0.1, a, f0.1, a)", "us a step ", 1e6*slowest(1)/steps, ", of the network ", &
      1e6*slowest(2)/steps, "; MB a rank ", largest(1), " resident, ", largest(2), " in proportion"
  end if
  call MPI_Finalize()

contains

  ! The memory of this process: what is resident, and this with shared pages divided by their users. Linux only.
  function megabytes() result(found)
    real(real64) :: found(2)
    character(256) :: line
    integer :: file, status
    found = -1
    open (newunit=file, file="/proc/self/smaps_rollup", status="old", action="read", iostat=status)
    do while (status == 0)
      read (file, "(a)", iostat=status) line
      if (line(:4) == "Rss:") read (line(5:), *) found(1)
      if (line(:4) == "Pss:") read (line(5:), *) found(2)
    end do
    found = found/1000
  end function megabytes
end program host
