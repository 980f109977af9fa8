! The closure as a network in an object file: threads share the columns, each calls the network for its part.
module network
  use, intrinsic :: iso_c_binding, only: c_float, c_intptr_t
  !$ use omp_lib, only: omp_get_max_threads
  use closure
  implicit none
  real(c_float) :: p(closure_size_of_params)

contains

  ! Reads the parameters, bytes of float32 one after another.
  subroutine load_network(folder)
    character(*), intent(in) :: folder
    integer :: unit
    open (newunit=unit, file=folder//"/parameters.bin", access="stream", form="unformatted", status="old", action="read")
    read (unit) p
    close (unit)
  end subroutine load_network

  subroutine apply_network(n, columns, u)
    integer, intent(in) :: n
    real(c_float), intent(in) :: columns(5, n)
    real(c_float), intent(out) :: u(1, n)
    integer :: first, part
    part = n
    !$ part = (n + omp_get_max_threads() - 1)/omp_get_max_threads()
    !$omp parallel do schedule(static, 1)
    do first = 1, n, part
      call closure_forward(int(min(part, n - first + 1), c_intptr_t), columns(:, first:), p, u(:, first:))
    end do
  end subroutine apply_network
end module network
