! The closure by libtorch, called as FTorch calls it: a TorchScript module, and tensors that borrow Fortran's arrays.
module network
  use, intrinsic :: iso_c_binding, only: c_char, c_float, c_int, c_int64_t, c_null_char
  !$ use omp_lib, only: omp_get_max_threads
  implicit none

  interface
    subroutine torch_load(file, threads) bind(c)
      import :: c_char, c_int
      character(c_char), intent(in) :: file(*)
      integer(c_int), value :: threads
    end subroutine torch_load

    subroutine torch_forward(n, inputs, x, y) bind(c)
      import :: c_float, c_int64_t
      integer(c_int64_t), value :: n, inputs
      real(c_float), intent(in) :: x(*)
      real(c_float), intent(out) :: y(*)
    end subroutine torch_forward
  end interface

contains

  subroutine load_network(folder)
    character(*), intent(in) :: folder
    integer :: threads
    threads = 1
    !$ threads = omp_get_max_threads()
    call torch_load(folder//"/closure.pt"//c_null_char, threads)
  end subroutine load_network

  subroutine apply_network(n, columns, u)
    integer, intent(in) :: n
    real(c_float), intent(in) :: columns(5, n)
    real(c_float), intent(out) :: u(1, n)
    call torch_forward(int(n, c_int64_t), 5_c_int64_t, columns, u)
  end subroutine apply_network
end module network
